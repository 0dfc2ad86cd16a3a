-- Fixed windows that envoyproxy/ratelimit counts in too: each window has a separate key, which holds the count as INCRBY
-- leaves it.
--
-- p1, p2  the start and the end of the key's window
-- p3      how long a new key lives, in ms
-- a       whether the value can be added to (1), or is to be replaced (0)
-- b       the count, between 0 and the maximum
-- c       the count as it was read
--
-- Other programs may have written any number. One that was poisoned by hits near 2^63 counts as the maximum, and one below
-- zero as 0. The next hit that counts corrects it.

local function read(key, value, p1, p2, p3, limit)
  if now < p1 or now >= p2 then again = again or 0 end
  local n = value and #value <= 20 and match(value, '^-?%d+$') and tonumber(value)
  if not n then return 0, 0, 0, pack('<I8', 0) end
  local count = min(max(n, 0), most_of(limit))
  return format(WHOLE, count) == value and 1 or 0, count, count, pack('<I8', count)
end

local function try(a, b, c, hits, limit)
  if b + hits < 0 then return nil end
  local count = min(b + hits, most_of(limit))
  return count <= limit or hits < 0, a, count, c
end

local function write(key, value, a, b, c, p1, p2, p3)
  if b == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  -- The reference sets the time to live with EXPIRE, after INCRBY. The time to live is missing if the reference died between the two, and
  -- it is too short if the reference set it for a shorter window that started at the same time. Then SET writes the whole key anew.
  if value and redis.call('PTTL', key) * 1000 >= p2 - now then
    if a == 0 then
      redis.call('SET', key, format(WHOLE, b), 'KEEPTTL')
    elseif b ~= c then
      redis.call('INCRBY', key, format(WHOLE, b - c))
    end
    return
  end
  if caller_clock then p3 = p3 + CALLER_SLACK end
  redis.call('SET', key, format(WHOLE, b), 'PX', format(WHOLE, p3))
end
