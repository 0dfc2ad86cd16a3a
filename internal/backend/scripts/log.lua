-- Sliding logs: the time of every hit.
--
-- p1, p2  the window's length and its quantum
-- p3      number of entries for which the reply has room
-- a, b    the base, and the state as it is kept
-- c       how many entries of it have left the window
--
-- The state is the base in quanta (64 bit), then an offset from it for each hit (32 bit), big-endian, oldest first. An offset takes half the
-- space of a time, and sorted entries of a fixed size let a binary search find the first entry that is still in the window.

local MAX_EXACT, MAX_ENTRIES, MAX_OFFSET = 4503599627370496, 65536, 4294967295

-- Returns the state with every entry after a time moved to that time.
local function not_after(a, b, at)
  if a > at then return at, pack('>I8', at) .. string.rep('\0', #b - 8) end
  local first, last = 0, (#b - 8) / 4
  local n = last
  while first < last do
    local middle = floor((first + last) / 2)
    if a + unpack_from('>I4', b, 9 + 4 * middle) <= at then first = middle + 1 else last = middle end
  end
  return a, sub(b, 1, 8 + 4 * first) .. string.rep(pack('>I4', at - a), n - first)
end

local function read(key, value, p1, p2, p3)
  if not value or #value < 12 or #value % 4 ~= 0 or #value > 8 + 4 * MAX_ENTRIES then return 0, '', 0, '' end
  local a = unpack_from('>I8', value)
  local newest = a + unpack_from('>I4', value, #value - 3)
  if a >= MAX_EXACT or (newest * p2 >= now + p2 and forever(key)) then return 0, '', 0, '' end
  local n = (#value - 8) / 4
  if n > p3 then again = max(again or 0, n) end
  local b, at = value, ceil(now / p2)
  if newest > at + ceil(SLACK / p2) then
    a, b = not_after(a, b, at)
    moved = true
  end
  local cut, first, last = floor(now / p2) - p1 / p2 - a, 0, n
  while first < last do
    local middle = floor((first + last) / 2)
    if unpack_from('>I4', b, 9 + 4 * middle) <= cut then first = middle + 1 else last = middle end
  end
  return a, b, first, value
end

local function try(a, b, c, hits, limit, p1, p2, p3, judge)
  local used = max(0, (#b - 8) / 4 - c)
  if used + hits < 0 then return nil end
  local allowed = hits < 0 or used + hits <= limit
  if judge then return allowed, a, b, c end
  if hits < 0 then return allowed, a, sub(b, 1, 8 + 4 * (c + used + hits)), c end

  local keep, at = hits, ceil(now / p2)
  if not allowed then -- a denied take that counts: more entries than the limit would change no decision
    keep = min(hits, limit)
  end
  if used > 0 then at = max(at, a + unpack_from('>I4', b, #b - 3)) end -- the entries stay sorted when the clock goes back
  if not allowed then
    local over = max(0, used + keep - limit)
    c, used = c + over, used - over
  end
  local live = ''
  if used <= 0 then
    a = at
  elseif at - a > MAX_OFFSET then
    local moved, shift = {}, unpack_from('>I4', b, 9 + 4 * c)
    for i = 1, used do moved[i] = pack('>I4', unpack_from('>I4', b, 5 + 4 * (c + i)) - shift) end
    a, live = a + shift, table.concat(moved)
  else
    live = sub(b, 9 + 4 * c)
  end
  return allowed, a, pack('>I8', a) .. live .. string.rep(pack('>I4', at - a), keep), 0
end

local function write(key, value, a, b, c, p1, p2)
  if #b <= 8 + 4 * c then
    if value then redis.call('DEL', key) end
    return
  end
  if c > 0 then b = sub(b, 1, 8) .. sub(b, 9 + 4 * c) end
  save(key, b, (a + unpack_from('>I4', b, #b - 3)) * p2 + p1)
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2)
  local at = ceil(mark / p2)
  if at <= floor(now / p2) - p1 / p2 then return nil end -- the entries have left the window
  if #b <= 8 then a, b, c = at, pack('>I8', at), 0 end
  at = max(at, a)
  if at - a > MAX_OFFSET then return nil end
  local n = (#b - 8) / 4
  local first, last = 0, n
  while first < last do
    local middle = floor((first + last) / 2)
    if unpack_from('>I4', b, 9 + 4 * middle) < at - a then first = middle + 1 else last = middle end
  end
  local before, after = sub(b, 1, 8 + 4 * first), sub(b, 9 + 4 * first)
  if delta < 0 then
    b = before .. sub(after, 1 - 4 * delta)
    if #b == 8 then b, c = '', 0 end
    return a, b, c
  end
  b = before .. string.rep(pack('>I4', at - a), min(delta, limit)) .. after
  local over = max(0, (#b - 8) / 4 - limit)
  return a, sub(b, 1, 8) .. sub(b, 9 + 4 * over), max(0, c - over)
end
