#!/usr/bin/env bash
# The README's commands as one recorded tour; see README.md beside this file.
set -eu
export PATH="$PWD/.venv/bin:$PATH"
state=$(mktemp -d)
export HEADRACE_DATA_DIR="$state/data"

show() { # print a command as if it were typed, then run it
  printf '\n\033[1;32m$\033[0m %s\n' "$1"
  eval "$1"
}

show 'headrace run smollm2-135m-instruct -p "Name three rivers." --temperature 0 --max-tokens 60'

printf '\n\033[1;32m$\033[0m headrace serve smollm2-135m-instruct --port 8000\n'
headrace serve smollm2-135m-instruct --port 8000 &
server=$!
until curl -sf http://127.0.0.1:8000/readyz >"$state/readyz"; do sleep 0.1; done
sleep 0.5
show "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{\"model\": \"smollm2-135m-instruct\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'"
echo
show 'headrace bench serve http://127.0.0.1:8000 --concurrency 1,8 --requests 8 --output-tokens 32'
kill -TERM "$server" && wait "$server"

printf '\n\033[1;32m$\033[0m headrace up --demo --replicas 2\n'
headrace up --demo --replicas 2 --ready-file "$state/ready.json" &
platform=$!
until [ -f "$state/ready.json" ]; do sleep 0.1; done
sleep 1
show 'headrace keys create --project default --models smollm2-135m-instruct --json'
show 'headrace replicas list'
key=$(python3 -c "import json; print(json.load(open('$state/ready.json'))['api_key'])")
for _ in 1 2 3; do
  curl -s http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $key" \
    -H 'Content-Type: application/json' -o "$state/answer.json" \
    -d '{"model": "smollm2-135m-instruct", "max_tokens": 40, "messages": [{"role": "user", "content": "Hello!"}]}'
done
sleep 1
show 'headrace usage --by tenant,model,day'
kill -INT "$platform" && wait "$platform"
rm -r "$state"
