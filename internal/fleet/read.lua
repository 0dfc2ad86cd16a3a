-- Answers with what some processes said. A text that is too long is empty.
-- KEYS: the hash of what each process says.
-- ARGV: most bytes of a text, then names.
local answer = {}
for i = 2, #ARGV do
  local short = redis.call('HSTRLEN', KEYS[1], ARGV[i]) <= tonumber(ARGV[1])
  answer[#answer + 1] = short and redis.call('HGET', KEYS[1], ARGV[i]) or ''
end
return answer
