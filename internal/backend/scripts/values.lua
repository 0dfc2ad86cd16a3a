-- Reads all counters together, for the parts that follow: values and reply by key. The first element of reply is the time.

local values = redis.call('MGET', unpack(KEYS, 1, min(read_keys, 1000)))
for from = 1001, read_keys, 1000 do -- a Lua call has room for some thousand arguments
  for i, v in ipairs(redis.call('MGET', unpack(KEYS, from, min(from + 999, read_keys)))) do
    values[from + i - 1] = v
  end
end

local EIGHT = '\8\0\0\0' -- the most common length, packed
local reply = { pack('<I8', now) }
