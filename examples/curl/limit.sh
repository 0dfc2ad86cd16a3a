#!/usr/bin/env bash
# Asks over HTTP whether a message may be sent, until the answer is no: limit.sh NUMBER [http://host:port] The exit code
# is the answer: 0 allowed, 1 denied, 2 no answer.
set -euo pipefail
number=${1:?which number?}
server=${2:-http://localhost:8080}

body=$(printf '{"domain": "messaging", "descriptors": [{"entries": [{"key": "message_type", "value": "marketing"}, {"key": "to_number", "value": "%s"}]}]}' "$number")
# Half a second at most: while a caller waits for this answer, its own users wait too.
status=$(curl -s -o /dev/null -w '%{http_code}' --max-time 0.5 -d "$body" "$server/json") || true
case $status in
  200) echo "send it" ;;
  429) echo "not now"; exit 1 ;;
  *) echo "nobody could say (status $status)" >&2; exit 2 ;;
esac
