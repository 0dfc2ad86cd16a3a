-- Counts the replicas that share this Redis. It uses only commands that the scripts that count requests use too.
--
-- KEYS[1]  the list of replicas: a line for each, with its name and the time of its last heartbeat in milliseconds
-- ARGV[1]  as for every script
-- ARGV[2]  the name of the calling replica, in hexadecimal digits
-- ARGV[3]  how long a replica counts after its last heartbeat, in milliseconds
-- ARGV[4]  '1': a heartbeat; '0': the replica leaves
-- ARGV[5]  the most replicas in the list
-- Reply    the number of replicas

local at, lives, most = floor(now / 1000), tonumber(ARGV[3]), tonumber(ARGV[5])
local list = redis.pcall('GET', KEYS[1])
if type(list) ~= 'string' then list = '' end
local kept, n = '', 0
if ARGV[4] == '1' then
  kept, n = ARGV[2] .. ' ' .. format('%d', at) .. '\n', 1
end
for name, ms in string.gmatch(list, '(%x+) (%d+)\n') do
  local age = at - tonumber(ms)
  -- A time in the future is from before the clock went back.
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
