#!/bin/bash
#SBATCH -C gpu
#SBATCH -A m0000
#SBATCH -q regular
#SBATCH -t 02:00:00
#SBATCH -N 4
#SBATCH --ntasks-per-node 4
#SBATCH --cpus-per-task 32
#SBATCH --gpus-per-node 4
export MASTER_ADDR=$(hostname)
module load pytorch
srun torchrun --nproc_per_node=4 --nnodes=$SLURM_NNODES --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500 -m torchtitan.train --job.config_file ./llama3_8b.toml
