-- Slurm, on the submit host: refuse a script that `planner check` says will not fit.
-- slurm.conf: CliFilterPlugins=cli_filter/lua; this file beside it as cli_filter.lua.
local planner = os.getenv("PLANNER") or "planner"

local function quoted(text)
    return "'" .. text:gsub("'", "'\\''") .. "'"
end

function slurm_cli_setup_defaults(options, early)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
    local script = options["argv"] and options["argv"][1]
    if options["type"] ~= "sbatch" or script == nil then
        return slurm.SUCCESS
    end
    local pipe = io.popen(planner .. " check " .. quoted(script) .. " 2>&1; echo exit $?")
    local answer = pipe:read("*a")
    pipe:close()
    if answer:match("exit 1\n$") then -- 2: it cannot tell, and the job is submitted
        slurm.log_error("%s", answer:gsub("exit 1\n$", ""))
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job, step)
    return slurm.SUCCESS
end
