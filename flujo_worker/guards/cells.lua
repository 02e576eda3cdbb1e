-- Put a value in the place of the one that it was computed of; nothing, if somebody was quicker.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
