/** The second tab: loads the runtime and the two models, and starts their views. */

import { cbf } from "./cbf.js";
import { pwc } from "./pwc.js";

const ABSENT =
  "The runtime is not part of this copy of the page. `make docs` fetches it where npm is installed " +
  "(docs/playground/fetch_runtime.py); the other tab needs nothing.";
const place = (path) => new URL(`../${path}`, import.meta.url).href;
const byId = (id) => document.getElementById(id);

/** A model in the browser: x and push in, raw and y out, as plain arrays of samples. */
class Model {
  constructor(ort, session, inputs, outputs) {
    Object.assign(this, { ort, session, inputs, outputs });
  }

  /** Map samples x and pushes, one array each, to { raw, y }. */
  async run(x, push) {
    const tensor = (samples, width) => {
      const flat = Float32Array.from(samples.flat());
      return new this.ort.Tensor("float32", flat, [samples.length, width]);
    };
    const found = await this.session.run({ x: tensor(x, this.inputs), push: tensor(push, this.outputs) });
    return { raw: samplesOf(found.raw), y: samplesOf(found.y) };
  }
}

function samplesOf({ data, dims }) {
  return Array.from({ length: dims[0] }, (_, k) => Array.from(data.subarray(k * dims[1], (k + 1) * dims[1])));
}

/** Load everything; the views, or null with a message on the page where the runtime is absent. */
export async function trained() {
  const ort = await import(place("runtime/ort.mjs")).catch(() => null);
  if (!ort) {
    byId("runtime").textContent = ABSENT;
    return null;
  }
  ort.env.wasm.numThreads = 1; // threads would need a server that isolates the page
  ort.env.wasm.wasmPaths = { wasm: place("runtime/ort-wasm-simd-threaded.wasm") };
  const load = async (name, inputs, outputs) =>
    new Model(ort, await ort.InferenceSession.create(place(`models/${name}.onnx`)), inputs, outputs);
  const models = { cbf: await load("cbf", 5, 2), pwc: await load("pwc", 1, 1) };
  const stamp = await (await fetch(place("models/models.json"))).json();
  byId("runtime").textContent = `onnxruntime-web ${ort.env.versions.web} runs both models on your machine.`;
  byId("provenance").textContent = provenance(stamp);
  return { models, cbf: cbf(models.cbf), pwc: pwc(models.pwc) };
}

function provenance({ command, versions, device, date, revision, seed, models }) {
  const each = Object.entries(models).map(([name, { method, epochs }]) => `${name}: method ${method}, ${epochs} epochs`);
  const made = `on ${date}, ${device}, torch ${versions.torch}, revision ${revision}, seed ${seed}`;
  return `Trained by ${command} (${each.join("; ")}) ${made}.`;
}
