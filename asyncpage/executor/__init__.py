"""The executor's side: the process that holds the model, its rows and the sampler. The only user of torch."""
