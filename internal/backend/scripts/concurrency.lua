-- Concurrency limits: a log of the places in use. The functions of log.lua do the work, except for refunds. In a log a refund drops the
-- newest entries. Here a refund means that a request has ended, so it frees the places that were taken first.

local try_log = try

local function try(a, b, c, hits, limit, p1, p2, p3, judge)
  if hits >= 0 then return try_log(a, b, c, hits, limit, p1, p2, p3, judge) end
  if max(0, (#b - 8) / 4 - c) + hits < 0 then return nil end
  return true, a, b, c - hits
end

-- For scripts with reservations.

local adjust_log = adjust

local function adjust(a, b, c, mark, delta, limit, p1, p2)
  if delta >= 0 then return adjust_log(a, b, c, mark, delta, limit, p1, p2) end
  local at, gone = ceil(mark / p2), floor(now / p2) - p1 / p2
  if at <= gone or #b <= 8 + 4 * c then return nil end -- the places are free again
  b = sub(b, 1, 8) .. sub(b, 9 + 4 * c)
  local function before(time) -- how many places were taken before then
    local first, last = 0, (#b - 8) / 4
    while first < last do
      local middle = floor((first + last) / 2)
      if a + unpack_from('>I4', b, 9 + 4 * middle) < time then first = middle + 1 else last = middle end
    end
    return first
  end
  local from = before(at)
  local n = min(before(at + 1) - from, -delta)
  b = sub(b, 1, 8 + 4 * from) .. sub(b, 9 + 4 * (from + n))
  local oldest = before(gone + 1)
  b = sub(b, 1, 8 + 4 * oldest) .. sub(b, 9 + 4 * (oldest - delta - n))
  return a, #b > 8 and b or '', 0
end
