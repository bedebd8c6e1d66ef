"""The whole flow from one YAML file, stage by stage, resumable."""
