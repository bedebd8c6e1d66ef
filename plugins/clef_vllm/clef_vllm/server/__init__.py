"""`clef-systemone`: the SystemOne HTTP contract on vLLM's asynchronous engine."""
