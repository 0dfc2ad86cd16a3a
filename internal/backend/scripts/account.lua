-- Accounts: what a region holds of a counter whose home is another region. The key is a record (records.lua).
--
-- limit   how many hits the record holds
-- p1, p2  the stamp that the caller has seen, and before which time the hits may be taken
-- a, b    the stamp of the record, and what was taken since it was written

local function read(key, value)
  -- With a caller's clock, nothing may be taken: it could be behind.
  if not value or #value < 16 or caller_clock then return 0, 0, 0, '' end
  local a, b = unpack_from('<I8I8', value)
  return a, b, 0, sub(value, 1, 16)
end

local function try(a, b, c, hits, limit, p1, p2)
  return a == p1 and now < p2 and b + hits <= limit, a, b + hits, c
end

local function write(key, value, a, b)
  redis.call('SETRANGE', key, 8, pack('<I8', b))
end
