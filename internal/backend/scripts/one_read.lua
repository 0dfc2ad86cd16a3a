-- Reads the arguments and the counter of one take, or of several identical takes of one counter.
--
-- ARGV[1]  after the time: how many there are (16 bit; 0: this only reads), whether denied hits count (0, 1), the hits
--          of each, the limit, p1 to p3 (64 bit each)

local times, count_denied, hits, limit, p1, p2, p3 = unpack_from('<I2Bi8I8I8I8I8', packed, 9)
local key = KEYS[1]
local value = redis.pcall('GET', key)
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
  value = false
end

