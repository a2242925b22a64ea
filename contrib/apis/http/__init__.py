"""HTTP calls of tools: `client` sends them; `rate_limits`, `credentials` and `cassette` (recordings) belong to it."""
