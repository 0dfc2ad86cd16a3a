-- Fixed windows on the clock or on a calendar.
--
-- p1, p2  the window's length and 0; for a calendar, the end and the start of the window that the caller computed
-- p3      for a calendar, the number of that window: the next one has a higher one
-- a, b    the number of the window and its count
-- c       the integer that the key held, 0 if it is ignored; -1 - (number mod 4096) if it held a larger count
--
-- The state is one integer, so that Redis keeps it without an allocation: (number mod 4096) * 2^40 + count. A count that does not fit
-- is kept in a text, "number mod 4096:count", which the reply shows as two integers.
--
-- Only 12 bits of the window's number are kept, so the distance between the state's window and the current one is known modulo 4096.
-- A distance of 1 to 255 ahead means that the clock went back. A state of the next window stays as it is. Hits of a window further ahead
-- count in the current window. Any other distance means that the state's window is over.

local WINDOWS, COUNTS, AHEAD = 4096, 1099511627776, 256 -- 2^12, 2^40
local function current(p1, p2, p3)
  if p2 == 0 then return floor(now / p1) end
  if now < p2 or now >= p1 then again = again or 0 end
  return p3
end

local NOTHING = '\0\0\0\0\0\0\0\0'

local function read(key, value, p1, p2, p3)
  local w, n = current(p1, p2, p3), tonumber(value)
  local window, count, seen
  if n then
    if n < 0 or n >= WINDOWS * COUNTS or n % 1 ~= 0 then return w, 0, 0, NOTHING end
    count = n % COUNTS
    window, seen = (n - count) / COUNTS, pack('<I8', n)
  elseif value and #value <= 21 then
    window, count = match(value, '^(%d+):(%d+)$')
    window, count = tonumber(window), tonumber(count)
    if not window or window >= WINDOWS or count > MAX_COUNT then return w, 0, 0, NOTHING end
    n, seen = -1 - window, pack('<I8I8', window, count)
  else
    return w, 0, 0, NOTHING
  end
  if count == 0 then return w, 0, 0, NOTHING end
  local ahead = (window - w) % WINDOWS
  if ahead > 0 then
    if ahead >= AHEAD or forever(key) then return w, 0, 0, NOTHING end
    if ahead > 1 then
      moved = true
      return w, count, 0, seen
    end
  end
  return w + ahead, count, n, seen
end

local function try(a, b, c, hits, limit, p1, p2, p3)
  if b == 0 then a = current(p1, p2, p3) end
  if b + hits < 0 then return nil end
  local count = min(b + hits, most_of(limit))
  return count <= limit or hits < 0, a, count, c
end

local function write(key, value, a, b, c, p1, p2)
  if b == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  local window = a % WINDOWS
  if b < COUNTS and c > 0 and floor(c / COUNTS) == window then
    local more = window * COUNTS + b - c
    if more == 0 then return end
    -- It keeps the time to live, and fails on a number that is not written as an integer. Any other reason to fail
    -- makes SET fail too.
    if type(redis.pcall('INCRBY', key, text_of(more))) == 'number' then return end
  end
  local state = b < COUNTS and format(WHOLE, window * COUNTS + b) or format(WHOLE, window) .. ':' .. format(WHOLE, b)
  if c < 0 and -1 - c == window or c > 0 and floor(c / COUNTS) == window then
    if state ~= value then redis.call('SET', key, state, 'KEEPTTL') end
    return
  end
  save(key, state, p2 == 0 and (a + 1) * p1 or p1, p2 == 0 and p1 or nil)
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2, p3)
  local w = current(p1, p2, p3)
  if b > 0 and a ~= w then return nil end
  if p2 == 0 then
    if floor(mark / p1) ~= w then return nil end
  elseif mark < p2 then
    return nil
  end
  return w, min(max(0, b + delta), most_of(limit)), c
end
