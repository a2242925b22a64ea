"""Episodes as OpenTelemetry spans, sent only where that is asked for."""
