-- The usual take of a fixed window: its hits fit into the window that the key holds, or start a new one, or are denied. This part
-- returns then. In all other cases it has changed nothing, and the parts below decide.
--
-- To define the functions below takes Redis as long as the commands of such a call. So this part defines none. It decides the usual
-- take as they decide every take: fixed.lua explains the state, which lies between window and window + counts.

if hits > 0 and times > 0 and (p2 == 0 or (now >= p2 and now < p1)) then
  local number = p2 == 0 and (now - now % p1) / p1 or p3
  local counts, added = 1099511627776, hits * times -- 2^40
  local window = number % 4096 * counts
  if value then
    local seen = tonumber(value) or 0
    local count = seen - window
    if count > 0 and count < counts and count % 1 == 0 then
      if count + added <= limit and count + added < counts then
        local written = redis.pcall('INCRBY', key, added == 1 and '1' or added)
        if type(written) == 'number' then return pack('<i8i8', now, seen) end
      elseif times == 1 and count_denied == 0 and count + hits > limit then
        return pack('<i8i8', now, seen)
      end
    end
  elseif added <= limit and added < counts and not caller_clock then
    redis.call('SET', key, window + added, 'PXAT', (p2 == 0 and (number + 1) * p1 or p1) / 1000)
    return pack('<i8i8', now, 0)
  end
end

