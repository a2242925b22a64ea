"""The APIs that programs speak: each file reads the requests of one, and writes its responses, streams and errors."""
