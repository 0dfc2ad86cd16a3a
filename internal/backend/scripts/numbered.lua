-- Adds a message to a stream. Each message has the number that follows the number of the one before, so that a reader
-- notices when one is missing.
--
-- KEYS[1]  the stream
-- ARGV[1]  about how many messages are kept; the oldest ones are removed
-- ARGV[2]  the first field of the message, followed by its value and by the other fields with theirs
-- Reply    the ID of the message

local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local n = last and tonumber(last[2][2]) or 0
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'n', string.format('%d', n + 1), unpack(ARGV, 2))
