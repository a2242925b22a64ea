"""Sessions over HTTP: agents elsewhere take an episode, ask its model, and finish it."""
