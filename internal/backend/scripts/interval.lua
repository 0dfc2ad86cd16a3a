-- Token buckets that get all tokens of a window together when the window starts. The state counts missing tokens, not present ones, so that a
-- counter without a state is a full bucket, and raising the limit adds tokens immediately.
--
-- p1, p2  the window's length, and the tokens it brings
-- p3      1: windows start with the first hit that takes from a full bucket; 0: they lie on the clock
-- limit   the bucket's capacity
-- a, b    the window in which the state was last changed, and how many tokens were missing then

local function read(key, value, p1, p2, p3)
  local mark, missing = read_pair(value)
  if not mark or ((missing >= MANY or mark > now) and forever(key)) then return now, 0, 0, '' end
  if mark > now then
    local start = p3 == 1 and now or now - now % p1
    if mark > start + (p3 == 1 and SLACK or p1) then
      mark, moved = start, true
    end
  end
  return mark, missing, 0, value
end

local function try(a, b, c, hits, limit, p1, p2, p3)
  if b > 0 then
    local windows = floor(max(0, now - a) / p1)
    if windows < ceil(b / p2) then
      a, b = a + windows * p1, b - windows * p2
    else
      b = 0
    end
  end
  if b == 0 then a = p3 == 1 and now or now - now % p1 end
  b = min(b, limit)
  return hits < 0 or b + hits <= limit, a, max(0, b + hits), c
end

local function write(key, value, a, b, c, p1, p2)
  if b == 0 then
    if value then redis.call('DEL', key) end
    return
  end
  local lives = ceil(b / p2) * p1
  save(key, pair_of(a, b, lives), a + lives)
end

-- For scripts with reservations.
local function adjust(a, b, c, mark, delta, limit, p1, p2, p3)
  local _, start, missing = try(a, b, c, 0, limit, p1, p2, p3)
  return start, min(max(0, missing + delta), limit), c
end
