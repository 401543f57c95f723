"""The laboratory of hardnet: experiments, problems, suites, training and reports, beside the library."""
