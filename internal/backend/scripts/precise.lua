-- Sliding windows of a higher precision: the sum of the counts of the newest sub-windows, plus the count of the oldest sub-window weighted
-- by the part of it that is less than a window ago. More sub-windows make the estimate closer, because only the oldest one is estimated.
--
-- p1, p2, p3  the length of a sub-window, its quantum, and how many make the window
-- a           the number of the newest sub-window
-- b           the counts as 32 bits each, big-endian, newest first; zeros at the end may be left out
--
-- The state is a (64 bit) followed by b.

local MAX_EXACT = 4503599627370496 -- 2^52
local rep = string.rep

local function read(key, value, p1, p2, p3)
  local w = floor(now / p1)
  if not value or #value < 12 or #value % 4 ~= 0 or #value > 12 + 4 * p3 then return w, '', 0, '' end
  local a = unpack_from('>I8', value)
  if a >= MAX_EXACT or (a > w and forever(key)) then return w, '', 0, '' end
  if a > w + p3 then
    a, moved = w, true
  end
  if a >= w then return a, sub(value, 9), 0, value end
  if w - a > p3 then return w, '', 0, value end
  return w, sub(rep('\0\0\0\0', w - a) .. sub(value, 9), 1, 4 * (p3 + 1)), 0, value
end

local function refund(counts, hits)
  for i, n in ipairs(counts) do
    local given = min(hits, n)
    counts[i], hits = pack('>I4', n - given), hits - given
  end
  local b = table.concat(counts)
  while sub(b, -4) == '\0\0\0\0' do b = sub(b, 1, -5) end
  return b
end

local function try(a, b, c, hits, limit, p1, p2, p3, judge)
  local w, length, phase, used, oldest = floor(now / p1), p1 / p2, -1, 0, 0
  local counts = { unpack_from('>' .. rep('I4', #b / 4), b) }
  counts[#counts] = nil -- where the unpacking ended
  for i = 1, min(#counts, p3) do used = used + counts[i] end
  if counts[p3 + 1] then oldest = counts[p3 + 1] end
  if used == 0 and oldest == 0 then a = w end
  if a == w then phase = floor(now / p2) % length end
  used = used + floor(min(oldest, floor(MAX_EXACT / length)) * (length - 1 - phase) / length)
  local allowed = hits < 0 or used + hits <= limit
  if used + hits < 0 then return nil end
  if judge or not allowed then return allowed, a, b, c end
  if hits < 0 then return allowed, a, refund(counts, -hits), c end
  return allowed, a, pack('>I4', (counts[1] or 0) + hits) .. sub(b, 5), c
end

local function write(key, value, a, b, c, p1, p2, p3)
  while sub(b, -4) == '\0\0\0\0' do b = sub(b, 1, -5) end
  if b == '' then
    if value then redis.call('DEL', key) end
    return
  end
  save(key, pack('>I8', a) .. b, (a + p3 + 1) * p1)
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2, p3)
  if match(b, '^%z*$') then a = floor(now / p1) end
  local i = max(0, a - floor(mark / p1)) + 1
  if i > p3 + 1 then return nil end
  b = b .. rep('\0', 4 * i - #b)
  local count = unpack_from('>I4', b, 4 * i - 3)
  return a, sub(b, 1, 4 * i - 4) .. pack('>I4', min(max(0, count + delta), 4294967295)) .. sub(b, 4 * i + 1), c
end
