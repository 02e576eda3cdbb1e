-- Count parts of a chord as Celery does, up to the one that completes it: that one and those after it are Celery's, which then signals.
-- Since 5.7 Celery marks the parts that it has counted, and a chord whose signal is sent; before, a part that is stored counts once.
-- Returns how many are counted.
local parts, excess, size, marks, claim = unpack(KEYS)
local is_marked, expires, count = ARGV[1] == '1', tonumber(ARGV[2]), 0
if redis.call('GET', claim) == 'done' then
    return (#ARGV - 2) / 3
end
local total = redis.call('GET', size)
local missing = total and total + (redis.call('GET', excess) or 0) - redis.call('ZCARD', parts)
for at = 3, #ARGV, 3 do
    local part, place, mark = ARGV[at], ARGV[at + 1], ARGV[at + 2] .. ':' .. ARGV[at + 1]
    local is_known
    if is_marked then
        is_known = redis.call('SISMEMBER', marks, mark) == 1
    else
        is_known = redis.call('ZSCORE', parts, part)
    end
    if missing and missing <= (is_known and 0 or 1) then
        break
    end
    if not is_known then
        redis.call('ZADD', parts, place, part)
        if is_marked then
            redis.call('SADD', marks, mark)
        end
        missing = missing and missing - 1
    end
    count = count + 1
end
if expires > 0 then
    for at = 1, 4 do
        redis.call('EXPIRE', KEYS[at], expires)
    end
end
return count
