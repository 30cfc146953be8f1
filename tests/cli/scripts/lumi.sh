#!/bin/bash -l
#SBATCH --job-name=gpt
#SBATCH --partition=standard-g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=3-00:00:00
#SBATCH --account=project_465000000
module load LUMI partition/G
export NCCL_SOCKET_IFNAME=hsn
export NCCL_NET_GDR_LEVEL=3
srun --cpu-bind=map_cpu:49,57,17,25,1,9,33,41 python3 finetune.py --model_name_or_path meta-llama/Llama-2-13b-hf --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --bf16 true --gradient_checkpointing true --deepspeed ds_auto.json --num_train_epochs 3
