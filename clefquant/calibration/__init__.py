"""Records, encoding through the release's own code, sources, mixtures and the stored set."""
