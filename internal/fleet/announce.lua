-- Writes what a process says of itself, and removes what is old.
-- KEYS: a sorted set of names by the time they were last seen, in ms; a hash of what each process says.
-- ARGV: name, what it says, 1 to answer with all, most processes, ms until one is gone, ms until one is removed.
-- Answers with 1 if there was room for this process, the time in ms, and how many there are; then name and time of each.
local seen, said = KEYS[1], KEYS[2]
local name, text, list = ARGV[1], ARGV[2], ARGV[3]
local most, gone, kept = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function remove(names)
  if #names > 0 then
    redis.call('ZREM', seen, unpack(names))
    redis.call('HDEL', said, unpack(names))
  end
end

remove(redis.call('ZRANGEBYSCORE', seen, '-inf', now - kept, 'LIMIT', 0, 100))
remove(redis.call('ZRANGEBYSCORE', seen, now + kept, '+inf', 'LIMIT', 0, 100)) -- the clock was set back
redis.call('ZADD', seen, now, name)
redis.call('HSET', said, name, text)
local room = 1
if redis.call('ZCARD', seen) > most then
  local least = redis.call('ZRANGEBYSCORE', seen, '-inf', now - gone, 'LIMIT', 0, 1)
  if #least == 0 then
    least, room = {name}, 0
  end
  remove(least)
end
redis.call('PEXPIRE', seen, 2 * kept)
redis.call('PEXPIRE', said, 2 * kept)

local answer = {room, now, redis.call('ZCARD', seen)}
if list == '1' then
  local all = redis.call('ZREVRANGE', seen, 0, most - 1, 'WITHSCORES')
  for i = 1, #all, 2 do
    answer[#answer + 1] = string.sub(all[i], 1, 64)
    answer[#answer + 1] = all[i + 1]
  end
end
return answer
