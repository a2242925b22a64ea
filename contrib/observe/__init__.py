"""Episodes as OpenTelemetry spans, sent only if that is asked for."""
