-- The proxy's job on nginx: whom the host names, the route from a shared dictionary (Redis on a
-- miss), the traffic token, the backend, and the return code on the response. The host form only.

local balancer = require "ngx.balancer"
local redis = require "nginx.redis"

local find_host = ngx.re.match
local find = string.find
local sub = string.sub
local routes = ngx.shared.routes
local PREFIX = "cube:v1:shared:sandbox:proxy:"

local M = { redis_port = 6379 }

local function refuse(status, retcode, reason, text)
    ngx.var.cube_retcode = retcode
    ngx.var.cube_reason = reason
    ngx.status = status
    ngx.header["Content-Type"] = "application/json"
    ngx.header["X-Cube-Retcode"] = retcode
    ngx.say('{"error":"', text, '"}')
    return ngx.exit(status)
end

-- "ip|port|token": what a request needs of a record, as one string, which a shared dictionary can
-- hold without encoding. The token is empty for a public sandbox.
local function read_route(key, id, port)
    local connection = redis:new()
    connection:set_timeout(1000)
    local ok = connection:connect("127.0.0.1", M.redis_port)
    if not ok then
        return nil, "store_unavailable"
    end
    local fields = connection:hgetall(PREFIX .. id)
    if not fields then
        return nil, "store_unavailable"
    end
    connection:set_keepalive(60000, 64)
    local record = connection:array_to_hash(fields)
    local mapped = record[port]
    if not record.HostIP or not mapped then
        return nil, "no_record"
    end
    local token = record.AllowPublicTraffic ~= "true" and record.TrafficAccessToken or ""
    local route = record.HostIP .. "|" .. mapped .. "|" .. token
    routes:set(key, route, math.random(500, 700))
    return route
end

function M.access()
    local names = find_host(ngx.var.http_host or "", "^([0-9]{1,5})-([A-Za-z0-9_-]{1,128})(?:[.:]|$)", "jo")
    if not names then
        return refuse(400, "310400", "bad_target", "bad request")
    end
    local port, id = names[1], names[2]:lower()
    ngx.var.cube_sandbox = id
    ngx.var.cube_port = port
    local key = id .. ":" .. port
    local route = routes:get(key)
    if not route then
        local why
        route, why = read_route(key, id, port)
        if why == "store_unavailable" then
            return refuse(503, "310500", why, "service unavailable")
        elseif not route then
            return refuse(404, "310507", why, "not found")
        end
    end
    local first = find(route, "|", 1, true)
    local second = find(route, "|", first + 1, true)
    local token = sub(route, second + 1)
    if token ~= "" then
        local presented = ngx.var.http_e2b_traffic_access_token or ngx.var.http_cube_traffic_access_token
        if presented ~= token then
            return refuse(404, "310507", presented and "token_wrong" or "token_missing", "not found")
        end
    end
    local context = ngx.ctx
    context.ip = sub(route, 1, first - 1)
    context.port = tonumber(sub(route, first + 1, second - 1))
    ngx.var.cube_backend = context.ip
end

function M.balance()
    local context = ngx.ctx
    local ok, why = balancer.set_current_peer(context.ip, context.port)
    if not ok then
        ngx.log(ngx.ERR, "no backend: ", why)
        return ngx.exit(502)
    end
end

function M.respond()
    local variables = ngx.var
    if variables.cube_retcode == "-" then
        local status = ngx.status
        variables.cube_retcode = status == 200 and "310200" or "330" .. status
        variables.cube_reason = status < 400 and "ok" or "upstream_status"
        ngx.header["X-Cube-Retcode"] = variables.cube_retcode
    end
    ngx.header["X-Cube-Request-Id"] = variables.cube_request_id
end

return M
