-- Fixed windows that start with a counter's first hit.
--
-- p1    the window's length
-- a, b  the start of the window, and its count

local function read(key, value, p1)
  local start, count = read_pair(value)
  if not start or (start > now and forever(key)) then return now, 0, 0, '' end
  if start > now + SLACK then
    moved = true
    return now, count, 0, value
  end
  if now >= start + p1 then return now, 0, 0, value end
  return start, count, 0, value
end

local function try(a, b, c, hits, limit)
  if b == 0 then a = now end
  if b + hits < 0 then return nil end
  local count = min(b + hits, most_of(limit))
  return count <= limit or hits < 0, a, count, c
end

local function write(key, value, a, b, c, p1)
  if b == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  save_digits(key, value, pair_of(a, b, p1), a + p1)
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2, p3, value)
  if b > 0 and mark < a + p1 then
    if mark < a then return nil end -- its window is over, and this one started later
  else
    local start = value and read_pair(value)
    if now >= mark + p1 or (start and start <= now and mark < start + p1) then return nil end
    a, b = mark, 0
  end
  return a, min(max(0, b + delta), most_of(limit)), c
end
