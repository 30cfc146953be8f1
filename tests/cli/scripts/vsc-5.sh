#!/bin/bash
#SBATCH --job-name=mistral
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=256
#SBATCH --partition=zen3_0512_a100x2
#SBATCH --qos=zen3_0512_a100x2
#SBATCH --gres=gpu:2
#SBATCH --time=24:00:00
module load miniconda3
eval "$(conda shell.bash hook)"
conda activate train
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
srun bash -c "accelerate launch --config_file acc.yaml --num_machines $SLURM_JOB_NUM_NODES --num_processes $((SLURM_JOB_NUM_NODES*2)) --machine_rank \$SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port 29500 train.py --model_name_or_path mistralai/Mistral-7B-v0.1 --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --bf16 --max_steps 500"
