#!/bin/bash
#SBATCH -J t
#SBATCH -N 8
#SBATCH -n 8
#SBATCH -p gh
#SBATCH -t 12:00:00
#SBATCH --gres=gpu:1
module load gcc cuda python3
mpirun -np 8 --map-by ppr:1:node run.sh
