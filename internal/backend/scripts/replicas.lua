-- Counts the processes that share this Redis. It needs no other commands than the scripts that count requests do.
--
-- KEYS[1]  where they are written down: a line for each, its name and when it was last heard of in milliseconds
-- ARGV[1]  as for every script
-- ARGV[2]  the name of the process that asks, in hexadecimal digits
-- ARGV[3]  for how long a process that is not heard of counts, in milliseconds
-- ARGV[4]  '1': it is there; '0': it leaves
-- ARGV[5]  how many are written down at most
-- Reply    how many there are

local at, lives, most = floor(now / 1000), tonumber(ARGV[3]), tonumber(ARGV[5])
local list = redis.pcall('GET', KEYS[1])
if type(list) ~= 'string' then list = '' end
local kept, n = '', 0
if ARGV[4] == '1' then
  kept, n = ARGV[2] .. ' ' .. format('%d', at) .. '\n', 1
end
for name, ms in string.gmatch(list, '(%x+) (%d+)\n') do
  local age = at - tonumber(ms)
  -- A time that is ahead is of a clock that went back since.
  if name ~= ARGV[2] and age < lives and age > -lives and n < most then
    kept, n = kept .. name .. ' ' .. ms .. '\n', n + 1
  end
end
if n == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], kept, 'PX', lives)
end
return n
