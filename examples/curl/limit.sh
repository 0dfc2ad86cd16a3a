#!/usr/bin/env bash
# Asks over HTTP whether a message may be sent, until the answer is no: limit.sh NUMBER [http://host:port]
# Exit codes are the answer: 0 while it may, 1 when it may not, 2 when nobody could say.
set -euo pipefail
number=${1:?which number?}
server=${2:-http://localhost:8080}

body=$(printf '{"domain": "messaging", "descriptors": [{"entries": [{"key": "message_type", "value": "marketing"}, {"key": "to_number", "value": "%s"}]}]}' "$number")
# Half a second at most: a caller that waits for its rate limit waits in front of its own users.
status=$(curl -s -o /dev/null -w '%{http_code}' --max-time 0.5 -d "$body" "$server/json") || true
case $status in
  200) echo "send it" ;;
  429) echo "not now"; exit 1 ;;
  *) echo "nobody could say (status $status)" >&2; exit 2 ;;
esac
