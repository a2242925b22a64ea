"""The generator: a vLLM engine in this process or in an actor. Only this folder imports vLLM."""
