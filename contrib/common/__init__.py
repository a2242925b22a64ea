"""What several folders of contrib use: HTTP servers, threads with a loop, guards of processes, forms of content."""
