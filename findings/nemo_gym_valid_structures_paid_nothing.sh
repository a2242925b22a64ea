#!/bin/sh
# Two graders of structured texts in NeMo Gym: structured_outputs and structeval.
# Package: nemo-gym 0.4.0 (made for Python 3.12; its graders run on 3.11 too) and what its graders import.
# Guess: a text that is valid JSON, YAML, TOML or XML, and fits the schema, earns 1, whatever its strings hold.
# Seen: structeval decodes the whole answer as a Python string before it parses it. JSON with \n or an escaped quote in a
# string, and XML with &lt;, are no longer valid then and earn 0. Letters beyond ASCII are spoilt, so a key with one is not found.
# structured_outputs makes all properties required, so an optional one that is left out earns 0. A schema with a property
# that is called "properties" is destroyed by that: every answer earns 0. A date without quotes, which YAML and TOML have, is no
# string. A number that may be null is never read from XML, though from CSV it is.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check openai==2.7.2 ray==2.55.1 wandb==0.31.0 hydra-core==1.3.8 \
        fastapi==0.165.0 uvicorn==0.54.0 aiohttp==3.14.5 itsdangerous==2.2.0 python-multipart==0.0.34 orjson==3.13.0 pandas==3.1.1 \
        yappi==1.7.6 gprof2dot==2025.4.14 pydot==4.0.1 psutil==7.2.2 rich==15.0.0 xmltodict==1.0.4 toml==0.10.2 \
        openapi-schema-validator==0.9.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python nemo-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
cd "$folder" # nemo_gym keeps its cache below the current folder
"$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

from resources_servers.structeval import app as structeval
from resources_servers.structured_outputs import app as structured

assert version("nemo-gym") == "0.4.0", version("nemo-gym")


def syntax(kind, text):
    """Whether structeval parses an answer, and as what."""
    parsed, score, _, _ = structeval._parse_content(structeval._extract_code(f"<|BEGIN_CODE|>{text}<|END_CODE|>", kind), kind)
    return score, parsed


for kind, text, score in (
    ("json", json.dumps({"text": "one line"}), 1.0),
    ("json", json.dumps({"text": "two\nlines"}), 0.0),
    ("json", json.dumps({"text": 'say "hi"'}), 0.0),
    ("json", json.dumps({"pattern": r"\d+"}), 0.0),
    ("xml", "<a>x &lt; y</a>", 0.0),
):
    seen = syntax(kind, text)
    print(f"structeval, {kind} {text}: {seen}")
    assert seen[0] == score
assert syntax("json", json.dumps({"Größe": 3}, ensure_ascii=False))[1] == {"GrÃ¶Ã\x9fe": 3}

person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}}, "required": ["name"]}
place = {"type": "object", "properties": {"properties": {"type": "array"}}}
day = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
in_tag = {"type": "object", "properties": {"person": person}}
plain = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
grader = structured.StructuredOutputsResourcesServer.model_construct(
    config=structured.StructuredOutputsResourcesServerConfig.model_construct(xml_coerce_types=True)
)
for kind, text, schema, score in (
    ("json", '{"name": "Ann", "age": 3}', person, 1.0),
    ("json", '{"name": "Ann"}', person, 0.0),
    ("json", '{"properties": ["wet"]}', place, 0.0),
    ("json", '{"day": "2026-11-02"}', day, 1.0),
    ("yaml", "day: 2026-11-02", day, 0.0),
    ("toml", "day = 2026-11-02", day, 0.0),
    ("csv", "name,age\nAnn,3\n", {"type": "array", "items": person}, 1.0),
    ("xml", "<person><name>Ann</name><age>3</age></person>", in_tag, 0.0),
    ("xml", "<person><name>Ann</name><age>3</age></person>", {"type": "object", "properties": {"person": plain}}, 1.0),
):
    seen = grader.evaluate_structured_output_response(structured.SchemaType(kind), json.dumps(schema), text)[0]
    print(f"structured_outputs, {kind} {text!r}: {seen}")
    assert seen == score
EOP
