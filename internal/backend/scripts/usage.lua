-- Adds texts to a set of the index of usage, and removes some that have ended. A set keeps the 100,000 texts that end last; the
-- answer is how many others it lost.
--
-- KEYS[1]  the set
-- ARGV[1]  the time in milliseconds
-- ARGV[2]  how long the last of these texts lasts, in milliseconds
-- ARGV[3]  when the first text ends, in milliseconds, followed by the text and by the other texts in the same form

redis.call('ZADD', KEYS[1], 'GT', unpack(ARGV, 3))
local ended = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, 1000)
if ended[1] then redis.call('ZREM', KEYS[1], unpack(ended)) end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -100001)
