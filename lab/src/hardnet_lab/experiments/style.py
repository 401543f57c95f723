"""The style sheet of the report page."""

CSS = """\
:root { --ink: #1d2430; --soft: #667085; --line: #e4e7ec; --green: #e6f4ec; --red: #fbe9e7; --accent: #1a7f5a; }
* { box-sizing: border-box; }
body {
  margin: 0; background: #fafbfc; color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { margin: 0; font-size: 2rem; letter-spacing: -0.02em; }
h2 { margin: 0 0 0.25rem; font-size: 1.3rem; letter-spacing: -0.01em; }
header p, section > p { margin: 0.25rem 0 1rem; color: var(--soft); }
code {
  padding: 0.1em 0.4em; border-radius: 4px; background: #eef1f5; color: var(--soft); font-size: 0.75em;
  font-weight: 500;
}
nav { display: flex; flex-wrap: wrap; gap: 0.5rem; margin-bottom: 1.5rem; }
nav a {
  padding: 0.25rem 0.75rem; border: 1px solid var(--line); border-radius: 99px; background: white; color:
  var(--ink); font-size: 0.85rem; text-decoration: none;
}
nav a:hover { border-color: var(--accent); color: var(--accent); }
.cards {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 0.75rem; margin-bottom:
  1.5rem;
}
.card {
  display: flex; flex-direction: column; padding: 0.9rem 1rem; border: 1px solid var(--line); border-top: 3px
  solid var(--accent); border-radius: 8px; background: white;
}
.card b { font-size: 0.8rem; font-weight: 600; }
.card span {
  margin: auto 0 0.15rem; padding-top: 0.35rem; font-size: 1.25rem; font-weight: 600; font-variant-numeric:
  tabular-nums;
}
small { display: block; color: var(--soft); font-size: 0.78rem; }
section {
  margin-bottom: 1.5rem; padding: 1.5rem; border: 1px solid var(--line); border-radius: 10px; background:
  white;
}
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
th, td {
  padding: 0.45rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  white-space: nowrap;
}
th:first-child, .plain th, .plain td { text-align: left; }
thead th { border-bottom: 2px solid var(--ink); font-weight: 600; }
tbody th { font-weight: 500; }
.reference th, .reference td { color: var(--soft); font-style: italic; }
.ours th, .ours td { font-weight: 600; }
.recipe td { text-align: left; white-space: normal; color: var(--soft); font-style: italic; padding-top: 1rem; }
.ours small { font-weight: 400; }
.holds { background: var(--green); }
.broken { background: var(--red); }
.plain td { white-space: normal; }
.note { margin: 0.6rem 0 1rem; font-size: 0.8rem; }
figure { margin: 1.25rem auto 0; max-width: 1000px; }
img { display: block; width: 100%; }
figcaption { padding: 0.25rem 0.6rem 0; color: var(--soft); font-size: 0.8rem; text-align: center; }
@media print { body { background: white; } section, .card { break-inside: avoid; } nav { display: none; } }
"""
