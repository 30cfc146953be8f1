-- Slurm, in slurmctld: refuse a job that `planner check` says will not fit, however it is submitted.
-- slurm.conf: JobSubmitPlugins=lua; this file beside it as job_submit.lua. The controller waits for
-- the check, about a second, and reads only files that it can reach.
local planner = os.getenv("PLANNER") or "planner"

local function quoted(text)
    return "'" .. text:gsub("'", "'\\''") .. "'"
end

function slurm_job_submit(job, partitions, user)
    if job.script == nil then
        return slurm.SUCCESS
    end
    local path = os.tmpname()
    local file = io.open(path, "w")
    file:write(job.script)
    file:close()
    local folder = "cd " .. quoted(job.work_dir or "/") .. " && "
    local pipe = io.popen(folder .. planner .. " check " .. path .. " 2>&1; echo exit $?")
    local answer = pipe:read("*a")
    pipe:close()
    os.remove(path)
    if answer:match("exit 1\n$") then -- 2: it cannot tell, and the job is accepted
        slurm.log_user("%s", answer:gsub("exit 1\n$", ""))
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
    return slurm.SUCCESS
end
