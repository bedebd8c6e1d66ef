"""Read a release: names to units, load it, the bundled nano model, write artefacts atomically."""
