-- One take, which is the most common call, or several identical takes of one counter.
--
-- ARGV[1]  after the time: how many there are (16 bit; 0: this only reads), whether refused hits count (0, 1), the hits
--          of each, the limit, p1 to p3 (64 bit each)
-- Reply    after the time: the state as it was, if it was one of ours

local times, count_denied, hits, limit, p1, p2, p3 = unpack_from('<I2Bi8I8I8I8I8', packed, 9)
local key = KEYS[1]
local value = redis.pcall('GET', key)
if type(value) == 'table' then
  if not find(value.err, 'WRONGTYPE', 1, true) then return value end
  value = false
end
local a, b, c, seen = read(key, value, p1, p2, p3, limit)
if again then return pack('<i8I4', -now, again) end
local changed, any = false, false
if hits ~= 0 then
  a, b, c, changed, any = repeated(try, times, count_denied, a, b, c, hits, limit, p1, p2, p3)
end
if any then
  write(key, value, a, b, c, p1, p2, p3)
elseif changed or (moved and times > 0) then
  -- A refusal holds whether or not there is memory to count it.
  local written, err = pcall(write, key, value, a, b, c, p1, p2, p3)
  if not written and not full(err) then error(err, 0) end
end
return pack('<I8', now) .. seen
