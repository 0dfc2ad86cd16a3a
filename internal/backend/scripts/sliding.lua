-- Sliding windows of precision 1: this window's count, and the one before weighted by the part of it that is less than a window
-- ago: slidingWindow in package backend explains it.
--
-- p1, p2   the window's length and its quantum
-- a, b, c  the number of the window, its count, and the count of the one before
--
-- The state is 19 digits, so that Redis keeps it as an integer. A Lua number is exact to 16 digits only, so the digits are cut as a string:
-- one digit for the number of digits of each count (1 to 7), the last digits of the window's number, the earlier count, this count.
-- Larger counts are kept as the text "number:earlier:this".

local MAX_EXACT = 4503599627370496 -- 2^52

local function decode(value, w)
  if #value == 19 and find(value, '^[1-7]%d+$') then
    local digits = byte(value) - 48
    local a = tonumber(sub(value, 2, 19 - 2 * digits))
    if digits > 2 then -- a window of a millisecond has a number of 13 digits, and there is room for 12
      local range = 10 ^ (18 - 2 * digits)
      a = w + (a - w + range / 2) % range - range / 2
    end
    return a, tonumber(sub(value, -digits)), tonumber(sub(value, -2 * digits, -digits - 1))
  end
  if #value > 50 then return nil end
  local a, c, b = match(value, '^(%d+):(%d+):(%d+)$')
  a, b, c = tonumber(a), tonumber(b), tonumber(c)
  if not a or a >= MAX_EXACT or b > MAX_EXACT or c > MAX_EXACT then return nil end
  return a, b, c
end

local function read(key, value, p1)
  local w = floor(now / p1)
  if not value then return w, 0, 0, '' end
  local a, b, c = decode(value, w)
  if not a or (a > w and forever(key)) then return w, 0, 0, '' end
  if a == w - 1 then return w, 0, b, value end
  if a < w then return w, 0, 0, value end
  if a > w + 1 then
    a, moved = w, true
  end
  return a, b, c, value
end

local function try(a, b, c, hits, limit, p1, p2)
  local w, length, phase = floor(now / p1), p1 / p2, -1 -- it has not started, because the clock went back
  if b == 0 and c == 0 then a = w end
  if a == w then phase = floor(now / p2) % length end
  local used = floor(min(c, floor(MAX_EXACT / length)) * (length - 1 - phase) / length) + b
  if used + hits < 0 then return nil end
  local allowed = hits < 0 or used + hits <= limit
  b = b + hits
  if b < 0 then b, c = 0, c + b end
  return allowed, a, b, c
end

local function write(key, value, a, b, c, p1)
  if b == 0 and c == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  local digits, state = #format(WHOLE, max(b, c))
  if digits > 7 then
    state = format(WHOLE, a) .. ':' .. format(WHOLE, c) .. ':' .. format(WHOLE, b)
  else
    state = digits .. sub(format(WHOLE_18, a), 2 * digits + 1)
      .. sub(format(WHOLE_7, c), -digits) .. sub(format(WHOLE_7, b), -digits)
  end
  save_digits(key, value, state, (a + 2) * p1, p1)
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1)
  local most = limit < MANY and MANY - 1 or MAX_EXACT
  if b == 0 and c == 0 then a = floor(now / p1) end
  local shift = a - floor(mark / p1)
  if shift <= 0 then return a, min(max(0, b + delta), most), c end
  if shift == 1 then return a, b, min(max(0, c + delta), most) end
  return nil
end
