-- Fixed windows, on the clock or on a calendar, that classes of customers share. sharedWindow in package backend has the rules.
--
-- p1, p2  the window's length and 0; for a calendar, the end and the start of the window that the caller computed
-- p3      from its lowest bits: 3 for the class of the take, counted from 1, or 0; 8 for the names of the classes; 7 for the guarantee of
--         each class, in percent
-- a, b    the start of the window, and the number of hits in it
-- c       the names (one byte), and for each class the part of its guarantee that is gone (32 bit, big-endian); '' if nothing is used
--
-- The state is a and b (64 bit each, little-endian), then c.

local STEPS, MOST_GONE = 8192, 4294967295

local function bounds(p1, p2)
  if p2 == 0 then
    local start = now - now % p1
    return start, start + p1
  end
  if now < p2 or now >= p1 then again = again or 0 end
  return p2, p1
end

local function read(key, value, p1, p2)
  local start, ends = bounds(p1, p2)
  if not value or #value < 17 or #value % 4 ~= 1 then return start, 0, '', '' end
  local a, b = unpack_from('<I8I8', value)
  if b == 0 or b > MAX_COUNT or a < start then return start, 0, '', '' end
  if a >= ends and forever(key) then return start, 0, '', '' end
  if a > ends then
    moved = true
    a = start
  end
  return a, b, sub(value, 17), value
end

-- Hits that are still due to a class when that many of the window's steps are left.
local function due(percent, limit, left, steps) return floor(percent * limit * left / (100 * steps)) end

-- Returns the hits that are kept for other classes, and c with the hits in it.
local function shared(a, c, hits, limit, p1, p2, p3)
  local start, ends = bounds(p1, p2)
  local step = ceil((ends - start) / STEPS)
  local steps = floor((ends - start - 1) / step)
  -- A state of the next window is from before the clock went back: that whole window is left.
  local left = a >= ends and steps or steps - floor((now - start) / step)
  local class, names, percents = p3 % 8, floor(p3 / 8) % 256, floor(p3 / 2048)
  local known, kept, gone, n = byte(c) == names, 0, pack('<B', names), 0
  while percents > 0 do
    local percent = percents % 128
    percents, n = floor(percents / 128), n + 1
    local whole, rest = due(percent, limit, steps, steps), due(percent, limit, left, steps)
    local used = known and #c > 4 * n and unpack_from('>I4', c, 4 * n - 2) or 0
    if n == class then
      used = min(max(0, (hits > 0 and max(used, whole - rest) or used) + hits), MOST_GONE)
    else
      kept = kept + max(0, min(rest, whole - used))
    end
    gone = gone .. pack('>I4', used)
  end
  return kept, gone
end

local function try(a, b, c, hits, limit, p1, p2, p3)
  if b == 0 then a, c = (bounds(p1, p2)), '' end
  if b + hits < 0 then return nil end
  local kept, gone = shared(a, c, hits, limit, p1, p2, p3)
  local count = min(b + hits, most_of(limit))
  return count + kept <= limit or hits < 0, a, count, gone
end

local function write(key, value, a, b, c, p1, p2)
  if b == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  local state = pack('<I8I8', a, b) .. c
  if value and #value >= 17 and unpack_from('<I8', value) == a then
    redis.call('SET', key, state, 'KEEPTTL')
    return
  end
  save(key, state, p2 == 0 and a + p1 or p1, p2 == 0 and p1 or nil)
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2, p3)
  local start, ends = bounds(p1, p2)
  if b > 0 and a ~= start or mark < start or mark >= ends then return nil end
  local _, gone = shared(start, b > 0 and c or '', delta, limit, p1, p2, p3)
  return start, min(max(0, b + delta), most_of(limit)), gone
end
