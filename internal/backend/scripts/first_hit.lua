-- Fixed windows that begin with a counter's first hit.
--
-- p1    the window's length
-- a, b  when the window began, and its count

local MAX_COUNT = 1099511627775 -- 2^40 - 1

local function read(key, value, p1)
  local start, count = read_pair(value)
  if not start or (start > now and forever(key)) then return now, 0, 0, '' end
  if now >= start + p1 then return now, 0, 0, value end
  return start, count, 0, value
end

local function try(a, b, c, hits, limit)
  if b == 0 then a = now end
  local count = min(max(b + hits, 0), MAX_COUNT)
  return count <= limit or hits < 0, a, count, c
end

local function write(key, value, a, b, c, p1)
  if b == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  save_digits(key, value, pair_of(a, b, p1), a + p1)
end
