"""LiteLLM's proxy before one engine, for bench/gateway.py; run it by a Python that has `litellm`.

    python bench/peers/litellm_proxy.py ENGINE_URL PORT

It asks for the key `sk-bench`, as headrace asks for one, and has no database.
"""

import sys
import tempfile
from pathlib import Path

from litellm.proxy.proxy_cli import run_server

config = """
model_list:
  - model_name: fake
    litellm_params: {{model: openai/fake, api_base: "{engine}/v1", api_key: none}}
general_settings: {{master_key: sk-bench}}
litellm_settings: {{telemetry: false}}
"""


def main() -> None:
    engine, port = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.yaml"
        path.write_text(config.format(engine=engine))
        sys.argv[1:] = ["--config", str(path), "--host", "127.0.0.1", "--port", port]
        run_server()


if __name__ == "__main__":
    main()
