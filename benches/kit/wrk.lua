-- wrk's side of the load bench. From the environment:
--   BENCH_UPLOAD     bytes of a body to send
--   BENCH_SANDBOXES  how many sandboxes to spread over; the host names the next one each time
--   BENCH_FIRST      the first of them
--   BENCH_STEP       how far apart the next one is
-- When it is done it prints one JSON object.

local upload = tonumber(os.getenv("BENCH_UPLOAD") or "0")
local sandboxes = tonumber(os.getenv("BENCH_SANDBOXES") or "0")

if upload > 0 then
    wrk.method = "POST"
    wrk.body = string.rep("x", upload)
end

if sandboxes > 0 then
    local at = tonumber(os.getenv("BENCH_FIRST") or "0")
    local step = tonumber(os.getenv("BENCH_STEP") or "1")
    local host = "Host: 8000-%032x.cube.test\r\n"
    local head = "GET / HTTP/1.1\r\n"
    local rest = ""
    function init()
        for name, value in pairs(wrk.headers) do
            if name ~= "Host" then
                rest = rest .. name .. ": " .. value .. "\r\n"
            end
        end
    end
    function request()
        at = (at + step) % sandboxes
        return head .. host:format(at) .. rest .. "\r\n"
    end
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        'RESULT {"count": %d, "seconds": %f, "bytes": %d, "p50": %d, "p99": %d, "p999": %d, ' ..
        '"errors": {"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\n',
        summary.requests, summary.duration / 1e6, summary.bytes,
        latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
        errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
