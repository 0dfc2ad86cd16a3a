-- The usual take from an account: the record is the one that the caller has seen, and is valid. This part returns then, before functions are
-- defined: see fixed_usual.lua. account.lua explains the rest.

if times > 0 and value and #value >= 16 and not caller_clock then
  local stamp, taken = unpack_from('<I8I8', value)
  local added = hits * times
  if stamp == p1 and now < p2 and added > 0 and (taken + added <= limit or times == 1) then
    if taken + added <= limit then redis.call('SETRANGE', key, 8, pack('<I8', taken + added)) end
    return pack('<i8I8I8', now, stamp, taken)
  end
end
