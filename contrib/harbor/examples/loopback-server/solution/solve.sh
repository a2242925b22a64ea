#!/bin/sh
set -e
cat > /app/server.py <<'END'
import re
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        match = re.fullmatch(r"/double/(-?[0-9]+)", self.path)
        self.send_response(200 if match else 404)
        self.end_headers()
        if match:
            self.wfile.write(str(2 * int(match[1])).encode())


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
END
